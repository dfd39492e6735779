// The role of the user, and whether the server has a Celery app.

export const session = { role: "read", app: false };

export const mayWrite = () => session.role === "write";

export const READ_ONLY = "Your key is read-only. Sign in with a write key to release locks or to stop tasks.";
