"""The cockpit over HTTP, inside Airflow: who may see which pipeline, the routes of the data, the files of the page."""
