"""A changed definition tried in batch over a part of the log, before anything is upgraded. Nothing is written."""
