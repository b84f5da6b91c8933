"""From tasks to scored trajectories: episodes, and the step that every engine shares."""
