"""What proves rivertwice and shows it at work, and no user of it needs: fault lab, protocol model, oracle, flights, demo, benches."""
