"""Who controls growth: a policy that learns, and controllers that do not."""

from esper.agent.base import AgentConfig, Controller, Decision, State
from esper.agent.greedy import GreedyPotential, GreedyPotentialConfig
from esper.agent.heuristic import Heuristic, HeuristicConfig
from esper.agent.learner import PPO, UpdateStats
from esper.agent.ppo import PPOConfig
from esper.agent.scripted import Random, RandomConfig, Schedule, ScheduleConfig, Wait, WaitConfig

__all__ = [
    "PPO",
    "AgentConfig",
    "Controller",
    "Decision",
    "GreedyPotential",
    "GreedyPotentialConfig",
    "Heuristic",
    "HeuristicConfig",
    "PPOConfig",
    "Random",
    "RandomConfig",
    "Schedule",
    "ScheduleConfig",
    "State",
    "UpdateStats",
    "Wait",
    "WaitConfig",
]
