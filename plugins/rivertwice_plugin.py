from rivertwice.orchestration.plugin_file import *  # noqa: D100, F403
