"""The fault suite: what a hostile or failing world does to keyhole, counted by outcome."""
