"""The mechanism's lowest room: a lock store on Redis or Valkey. ``redis`` is imported here only."""
