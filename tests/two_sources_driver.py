"""The product's driver with the tests' transform over two sources: `python two_sources_driver.py --pipeline NAME ...`."""

from __future__ import annotations

import logging
import os
import sys

import two_sources
from rivertwice.pipeline import model
from rivertwice.stream import driver

if __name__ == "__main__":
    model.find_sources_conflict = lambda _: None
    driver.compile_stream = two_sources.union_stream
    code = driver.main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
