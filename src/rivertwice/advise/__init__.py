"""What another watermark would cost, worked out from the log that the stream read."""
