"""Answers for people: explain, doctor, models, bench, the settings."""
