"""The fault policies, fault tables and declarations in force."""
