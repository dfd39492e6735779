// Who we are to the server, and what it can do.

export const session = { role: "read", app: false };

export const mayWrite = () => session.role === "write";

export const READ_ONLY = "Your key may look, not act: sign in with a write key to release or stop.";
