"""The cockpit: the routes of our page in Airflow, and the acts that it offers."""
