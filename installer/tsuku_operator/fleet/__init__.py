"""Many machines, by Ansible."""
