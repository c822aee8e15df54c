SELECT * FROM readings WHERE kind <> 'heartbeat'
