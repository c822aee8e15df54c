SELECT * FROM departures WHERE tailnum IS NOT NULL
