"""What can be measured wherever Holdfast is installed: ``holdfast bench``. Nothing here passes or fails."""
