"""The fault lab: seeded events, kills at named steps, an oracle with none of our code, and campaigns of it all."""
