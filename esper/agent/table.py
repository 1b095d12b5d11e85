"""The table of controllers."""

from esper.agent.bandit import BanditConfig
from esper.agent.base import AgentConfig
from esper.agent.best_of_random import BestOfRandomConfig
from esper.agent.event_oracle import EventOracleConfig
from esper.agent.ppo.ppo import PPOConfig, PPOMLPConfig
from esper.agent.react import ReactConfig
from esper.agent.react_bandit import ReactBanditConfig
from esper.agent.schedule_bandit import ScheduleBanditConfig
from esper.agent.scripted.base import RandomConfig, WaitConfig
from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.agent.scripted.heuristic import HeuristicConfig
from esper.agent.scripted.periodic import PeriodicConfig
from esper.agent.scripted.replay import ReplayConfig
from esper.agent.scripted.schedule import ScheduleConfig

AGENTS: dict[str, type[AgentConfig]] = {
    "ppo": PPOConfig,
    "ppo_mlp": PPOMLPConfig,
    "heuristic": HeuristicConfig,
    "greedy_potential": GreedyPotentialConfig,
    "random": RandomConfig,
    "wait": WaitConfig,
    "schedule": ScheduleConfig,
    "periodic": PeriodicConfig,
    "best_of_random": BestOfRandomConfig,
    "schedule_bandit": ScheduleBanditConfig,
    "bandit": BanditConfig,
    "react": ReactConfig,
    "react_bandit": ReactBanditConfig,
    "event_oracle": EventOracleConfig,
    "replay": ReplayConfig,
}
"""Option of the group `agent` -> config."""
