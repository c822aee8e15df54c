"""Options for every JVM that may decode Avro; a JVM takes them only at its start."""

from __future__ import annotations

# A record may claim a text of 2 GB in five bytes, and Avro would reserve the memory before it reads the bytes.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength={most}"
    for what, most in (("string", 67_108_864), ("bytes", 67_108_864), ("collectionItems", 1_048_576))
)
