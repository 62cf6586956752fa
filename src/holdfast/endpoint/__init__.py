"""The two endpoints: RM Source and RM Destination as asyncio shells around the core."""
