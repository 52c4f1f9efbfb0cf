"""What everything stands on: errors, the clock, text, secrets and bounded reads; no domain."""
