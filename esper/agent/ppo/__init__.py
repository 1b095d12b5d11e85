"""PPO: a recurrent policy with masked, factored actions."""
