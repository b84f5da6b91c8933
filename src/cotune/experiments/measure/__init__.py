"""`cotune measure`: what only joint training promises."""
