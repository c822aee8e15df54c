"""Copies of the checkpoint: taken, proved, pruned; restore, upgrade, fall-back and rewind as operations of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.savepoint.catalogue import (
        ProofState,
        Savepoint,
        list_savepoints,
        load_savepoint,
        select_newest,
        survey_savepoints,
    )
    from rivertwice.savepoint.feed import plan_feed, replay_source, session_of
    from rivertwice.savepoint.keep_up import DISAGREED
    from rivertwice.savepoint.manifest import Manifest, StateBase, require_savepoint_id
    from rivertwice.savepoint.operations.effects import abandon_operation, find_abandonable
    from rivertwice.savepoint.operations.engine import ShownStep
    from rivertwice.savepoint.operations.fall_back import FallBackPlan, fall_back, show_fall_back
    from rivertwice.savepoint.operations.fork import DRAIN_S, drain_stream
    from rivertwice.savepoint.operations.record import (
        Operation,
        OperationStep,
        Restore,
        Rewind,
        find_repeated,
        only_operation,
        read_fall_back,
        read_operations,
        read_restores,
        read_rewinds,
    )
    from rivertwice.savepoint.operations.restore import restore_savepoint, show_restore
    from rivertwice.savepoint.operations.rewind import RewindReport, rewind_stream, show_rewind
    from rivertwice.savepoint.operations.steps import RESTORE, REWIND, UPGRADE, plan_of
    from rivertwice.savepoint.operations.upgrade import describe_change, show_upgrade, upgrade_stream
    from rivertwice.savepoint.plan import (
        MARGIN,
        check_chain,
        current_fingerprint,
        equivalent_bundles,
        is_on_path,
        load_state_definition,
        require_fingerprint,
        require_one_definition,
        require_recorded,
    )
    from rivertwice.savepoint.proof import Proof, ProofBudget, last_attempt
    from rivertwice.savepoint.prove import prove_rotation, prove_savepoint
    from rivertwice.savepoint.prune import (
        KEPT,
        held_savepoints,
        pin_savepoint,
        protected_savepoints,
        prune_savepoints,
        remove_savepoints,
        select_prunable,
        unpin_savepoint,
    )
    from rivertwice.savepoint.recovery import (
        BATCH_S,
        START_S,
        KeepUpDecision,
        RecoveryStep,
        RecoveryView,
        decide_keep_up,
        measured_batch_s,
        read_objective,
        view_recovery,
    )
    from rivertwice.savepoint.replay import replay_recorded
    from rivertwice.savepoint.take import beginning_of, copy_committed, make_empty_checkpoint, take_savepoint
    from rivertwice.savepoint.trim import batches_in
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
