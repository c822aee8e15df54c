"""What runs on one machine: setup, a broker and an Airflow for trying, `init` from sample data."""
