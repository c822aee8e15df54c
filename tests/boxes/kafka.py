"""Kafka's image: variables become properties, the folder is formatted once, the broker starts. Standard library only."""

import os
from pathlib import Path

JAVA = ["java", "-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-cp", "/opt/kafka/libs/*"]


def main() -> None:
    names = {key: key.removeprefix("KAFKA_").lower() for key in os.environ if key.startswith("KAFKA_")}
    spelt = {
        key: name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
        for key, name in names.items()
    }
    properties = Path("/tmp/server.properties")
    properties.write_text("".join(f"{name}={os.environ[key]}\n" for key, name in spelt.items()))
    if not Path(os.environ["KAFKA_LOG_DIRS"], "meta.properties").exists():
        cluster = os.environ.get("CLUSTER_ID", "5L6g3nShT-eMCtK--X86sw")  # the image's own
        made = [*JAVA, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        assert os.spawnvp(os.P_WAIT, "java", made) == 0
    os.execvp("java", [*JAVA, "kafka.Kafka", str(properties)])


main()
