"""Install, update, verify and remove builds."""
