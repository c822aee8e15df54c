"""Services for one machine: a Kafka broker and an Airflow under the home. A deployment brings its own."""
