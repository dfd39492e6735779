"""The engine: leases, and the operations that acquire, renew and release them."""
