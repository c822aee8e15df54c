"""The product's own decisions, by name, so that one of them can be broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.model.verdicts import true_meaning
from rivertwice.agent import backoff, decide, memory
from rivertwice.backfill import load_plan, publish
from rivertwice.backfill.plan import plan_backfill
from rivertwice.core.homes import PipelineHome
from rivertwice.deliver.plan import plan_next
from rivertwice.log.addresses import plan_chunks
from rivertwice.log.archive import check_unmoved, plan_extension
from rivertwice.reconcile.seals import look, merge, model, scope, settle, touched
from rivertwice.reconcile.seals import look as fit
from rivertwice.reconcile.seals import settle as check
from rivertwice.savepoint import awaiting, plan, prune, trim
from rivertwice.savepoint.operations import fork, rewind_plan
from rivertwice.storage import lease_terms
from rivertwice.stream import begin, checkpoint, damage, seal, side, sink
from rivertwice.timeline import lineage, sequence, served_stamp, serving, version_records, watermarks
from rivertwice.versions import begin as begin_version
from rivertwice.versions import comparisons, parity, proof, serve
from rivertwice.versions import parity as cover

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Rules:
    """Each field is a function of the product; a mutation replaces one of them."""

    plan_start: Rule = begin.plan_start
    check_fingerprint: Rule = begin.check_fingerprint
    check_topics: Rule = begin.check_topics
    find_damage: Rule = damage.find_damage
    is_unplanned: Rule = damage.is_unplanned
    watermark_after: Rule = watermarks.watermark_after
    decide_takeover: Rule = lease_terms.decide_takeover
    must_stop: Rule = lease_terms.must_stop
    is_lost: Rule = lease_terms.is_lost
    check_own: Rule = sink.check_own
    is_applied: Rule = sink.is_applied
    is_sealed: Rule = seal.is_sealed
    check_replay: Rule = sink.check_replay
    check_counts: Rule = sink.check_counts
    check_same_range: Rule = side.check_same_range
    check_predecessor: Rule = sequence.check_predecessor
    select_head: Rule = sequence.select_head
    trace_path: Rule = lineage.trace_path
    select_on_path: Rule = lineage.select_on_path
    late_watermarks_ms: Rule = lineage.late_watermarks_ms
    select_free_name: Rule = lineage.select_free_name
    select_winners: Rule = serving.select_winners
    select_batch: Rule = trim.select_batch
    select_surplus: Rule = trim.select_surplus
    select_proof_end: Rule = plan.select_proof_end
    plan_replay: Rule = plan.plan_replay
    require_fingerprint: Rule = plan.require_fingerprint
    require_on_path: Rule = plan.require_on_path
    require_reach: Rule = plan.require_reach
    select_protected: Rule = prune.select_protected
    select_prunable: Rule = prune.select_prunable
    find_holder: Rule = prune.find_holder
    select_awaiting: Rule = awaiting.select_awaiting
    protect_awaiting: Rule = awaiting.protect_awaiting
    select_origin: Rule = awaiting.select_origin
    plan_fork: Rule = fork.plan_fork
    is_same_fork: Rule = fork.is_same_fork
    find_refusals: Rule = rewind_plan.find_refusals
    has_caught_up: Rule = checkpoint.Goal.is_reached_by
    plan_backfill: Rule = plan_backfill
    plan_load: Rule = load_plan.plan_load
    find_unloaded: Rule = load_plan.find_unloaded
    check_head: Rule = publish.check_head
    check_not_older: Rule = publish.check_not_older
    plan_extension: Rule = plan_extension
    plan_chunks: Rule = plan_chunks
    check_unmoved: Rule = check_unmoved
    decide: Rule = decide.decide
    remember_end: Rule = memory.remember_end
    classify_exit: Rule = backoff.classify_exit
    decide_mode: Rule = look.decide_mode
    new_publications: Rule = look.ChangesSinceSeal.new_publications
    require_same_table: Rule = look.require_same_table
    select_seal: Rule = fit.select_seal
    require_sealed_batch: Rule = fit.require_sealed_batch
    require_same_meaning: Rule = fit.require_same_meaning
    require_stamp: Rule = fit.require_stamp
    require_no_loaded: Rule = fit.require_no_loaded
    meaning_of: Rule = true_meaning
    scope_since: Rule = scope.scope_since
    select_batches: Rule = scope.select_batches
    reaches_back: Rule = scope.reaches_back
    judge_touched: Rule = touched.judge_touched
    why_unproved: Rule = settle.why_unproved
    settled_until: Rule = settle.settled_until
    counted_sequence: Rule = settle.counted_sequence
    chain_hash: Rule = model.chain_hash
    check_chain: Rule = check.check_chain
    compare_served_rows: Rule = check.compare_served_rows
    sealed_pairs: Rule = merge.sealed_pairs
    settled_parts: Rule = merge.settled_parts
    plan_next: Rule = plan_next
    select_under_way: Rule = begin_version.select_under_way
    next_number: Rule = version_records.next_number
    require_droppable: Rule = begin_version.require_droppable
    needs_frozen: Rule = begin_version.needs_frozen
    served_while: Rule = PipelineHome.served_while
    mark_of: Rule = served_stamp.mark_of
    is_own: Rule = served_stamp.is_own
    serving_version_of: Rule = served_stamp.serving_version_of
    prove: Rule = proof.prove
    covered_until: Rule = cover.covered_until
    find_missing: Rule = parity.find_missing
    find_outdated: Rule = comparisons.find_outdated
    find_differences: Rule = parity.find_refusals
    has_served: Rule = serve.has_served
    require_unmoved: Rule = serve.require_unmoved
    stamp_to_serve: Rule = serve.stamp_to_serve
