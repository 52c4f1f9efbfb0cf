"""What several sources of facts read: answers, the machine, containers, the environment."""
