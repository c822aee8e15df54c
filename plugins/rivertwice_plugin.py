from rivertwice.orchestration.page import RivertwicePlugin as RivertwicePlugin  # noqa: D100
