"""What stands between organisations; today the codec that turns messages into bytes and back."""
