"""Sign-in for people: OpenID Connect, sessions in sealed cookies, and roles."""
