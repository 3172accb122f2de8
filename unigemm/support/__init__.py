"""What any room may use: settings, checks of arguments, locks, messages."""
