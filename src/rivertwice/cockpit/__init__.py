"""What the cockpit shows: facts read from the home, and the sentences, rows and drawings made of them.

Nothing here imports Airflow. `orchestration.cockpit` gives it over HTTP, the pages of `orchestration.web` show it.
"""
