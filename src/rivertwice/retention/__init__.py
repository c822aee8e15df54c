"""How long the log keeps what is still needed, and what happens to records that it drops first."""
