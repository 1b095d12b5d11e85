"""Host networks and their slots."""
