"""What is watched on a whole machine: targets, and rules on their memory."""
