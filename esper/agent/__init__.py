"""Who controls growth: a policy that learns, and controllers that do not."""

from esper.agent.base import AgentConfig, Controller, Decision, Learner, State
from esper.agent.greedy import GreedyPotential, GreedyPotentialConfig
from esper.agent.heuristic import Heuristic, HeuristicConfig
from esper.agent.learner import PPO, UpdateStats
from esper.agent.periodic import Periodic, PeriodicConfig
from esper.agent.ppo import PPOConfig, PPOMLPConfig
from esper.agent.replay import Replay, ReplayConfig
from esper.agent.schedule import ActionConfig, Schedule, ScheduleConfig, Written
from esper.agent.scripted import Random, RandomConfig, Wait, WaitConfig
from esper.agent.search import BestOfRandom, BestOfRandomConfig

__all__ = [
    "PPO",
    "ActionConfig",
    "AgentConfig",
    "BestOfRandom",
    "BestOfRandomConfig",
    "Controller",
    "Decision",
    "GreedyPotential",
    "GreedyPotentialConfig",
    "Heuristic",
    "HeuristicConfig",
    "Learner",
    "PPOConfig",
    "PPOMLPConfig",
    "Periodic",
    "PeriodicConfig",
    "Random",
    "RandomConfig",
    "Replay",
    "ReplayConfig",
    "Schedule",
    "ScheduleConfig",
    "State",
    "UpdateStats",
    "Wait",
    "WaitConfig",
    "Written",
]
