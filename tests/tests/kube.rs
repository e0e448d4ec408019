//! The agent against a real API server: objects are made, scaled and deleted, and traffic follows.
