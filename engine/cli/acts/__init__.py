"""Acts that are commits: each edits one document of a state repository as a careful person would, and pushes it."""
