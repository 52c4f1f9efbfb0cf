"""The commands of the release tool, grouped by what they work on."""
