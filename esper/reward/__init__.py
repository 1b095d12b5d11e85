"""What a controller is paid for."""
