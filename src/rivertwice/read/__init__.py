"""What reads and changes nothing: results, explain, and everything the page shows."""
