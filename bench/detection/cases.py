"""The test programs: each fault, the rules that identify it correctly, and the first step that shows it.

The docstring of each program gives details and the source of the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
AT_THE_END = None


@dataclass(frozen=True)
class Faulty:
    name: str
    fault: str
    rules: tuple[str, ...]
    """A warning or fatal finding of any of these rules identifies the fault correctly."""
    checkable: int | None = 1
    """The first step whose events show the fault; AT_THE_END if it appears when the process exits, or between steps."""
    twin: str | None = None
    """The healthy program that is identical except for the fault."""
    options: tuple[str, ...] = ()
    """Options for `holdfast run`, as a user would pass them."""
    platform: str | None = None
    """The only `sys.platform` on which the fault can occur. The program runs only there."""
    track: tuple[str, ...] = ("model",)
    """The variables that contain the model. TrainCheck needs them."""

    @property
    def path(self) -> Path:
        return PROGRAMS / "faulty" / f"{self.name}.py"


@dataclass(frozen=True)
class Healthy:
    name: str
    looks_like: str
    """The fault that the program resembles; empty for an ordinary program."""

    @property
    def path(self) -> Path:
        return PROGRAMS / "healthy" / f"{self.name}.py"


OUTSIDE = ("weights-outside-optimizer",)
FROZEN = ("weights-frozen",)
REPEATING = ("batches-repeating",)
NO_RATE = ("learning-rate-vanished", "weights-frozen")
UNFAITHFUL = ("checkpoint-unfaithful",)
NOT_FINITE = ("loss-not-finite", "gradients-not-finite")
LEFT = ("loss-diverging", *NOT_FINITE)
"""The rules that may be first to detect a diverging training."""

FAULTY = (
    # the loss
    Faulty("mask_is_empty", "all losses 0: the mask selects nothing", ("loss-all-zero",)),
    Faulty("weight_is_integer_division", "all losses 0: weight 0", ("loss-all-zero",), twin="plain_classifier"),
    Faulty("one_logit_cross_entropy", "all losses 0: softmax over one logit", ("loss-all-zero",)),
    Faulty("yolo_no_positives", "box and dfl losses 0: no positives", ("loss-component-zero",)),
    Faulty("log_of_zero", "NaN from log(0)", NOT_FINITE, checkable=10),
    Faulty("square_root_at_zero", "NaN gradients from sqrt at 0", NOT_FINITE, checkable=33),
    Faulty("half_precision_overflow", "infinite loss from a float16 sum", NOT_FINITE, checkable=31),
    Faulty("variance_collapses", "-inf from the log of a variance of 0", NOT_FINITE, checkable=68),
    Faulty("nan_in_the_data", "NaN in one sample", NOT_FINITE, checkable=62),
    Faulty("rate_ten_thousand_times", "rate 10,000 times too high", LEFT, checkable=1),
    Faulty("rate_hundred_times", "rate 100 times too high", LEFT, checkable=1, twin="transformer_lm"),
    Faulty("warmup_never_ends", "the rate grows without bound", LEFT, checkable=150),
    Faulty("exploding_recurrence", "gradients explode", (*LEFT, "gradients-exploding"), checkable=1),
    # gradients
    Faulty(
        "loss_made_anew",
        "no gradient: the loss is a new tensor",
        ("gradients-missing", *OUTSIDE, *FROZEN),
        twin="plain_classifier",
    ),
    Faulty("argmax_in_the_way", "no gradient: argmax", ("gradients-missing", *OUTSIDE, *FROZEN)),
    Faulty(  # layers may be dropped at random, experts not chosen: it takes the graphs of ten steps to be certain
        "encoder_detached",
        "most weights get no gradient: detach()",
        ("gradients-missing",),
        checkable=9,
        twin="gru_language",
    ),
    Faulty("dead_relu", "all gradients 0: dead ReLU", ("gradients-zero", "loss-constant"), checkable=52),
    Faulty("pictures_divided_to_zero", "all inputs 0: first layer gets zero gradients", ("gradients-zero",)),
    Faulty("never_cleared", "no zero_grad", ("gradients-never-cleared",), checkable=2, twin="plain_classifier"),
    Faulty(
        "cleared_too_soon",
        "zero_grad before step",
        ("gradients-missing", "gradients-zero", *FROZEN),
        twin="regression_class",
    ),
    Faulty("zeroed_by_a_hook", "all gradients 0: a hook", ("gradients-zero",)),
    Faulty(
        "scaler_skips_everything",
        "the scaler skips every step",
        (*NOT_FINITE, *FROZEN, "steps-skipped"),
    ),
    Faulty(
        "closure_without_backward",
        "the closure has no backward",
        ("gradients-missing", "gradients-zero", *FROZEN),
    ),
    # learning rate and schedule
    Faulty("rate_is_zero", "rate 0", NO_RATE, twin="plain_classifier"),
    Faulty("decay_every_batch", "epoch schedule stepped per batch: rate vanishes", NO_RATE, 30, twin="cnn_momentum"),
    Faulty("polynomial_for_epochs", "epoch schedule stepped per batch: rate 0", NO_RATE, checkable=13),
    Faulty("one_cycle_for_batches", "batch schedule stepped per epoch", ("steps-missing",), AT_THE_END),
    Faulty("ends_half_way", "ends after a quarter of its schedule", ("steps-missing",), AT_THE_END),
    # weights and optimizer
    Faulty("optimizer_of_the_old_model", "optimizer has another model's parameters", OUTSIDE, twin="cnn_momentum"),
    Faulty("optimizer_of_a_copy", "optimizer has the original of a copy", OUTSIDE),
    Faulty("new_head_outside", "new head not in the optimizer", OUTSIDE, twin="fine_tune_new_head"),
    Faulty("layers_in_a_list", "hidden layers not in the optimizer", OUTSIDE),
    Faulty("filter_misses_the_head", "head in no parameter group", OUTSIDE),
    Faulty("gan_wrong_parameters", "discriminator in no optimizer", OUTSIDE, twin="gan", track=("generator",)),
    Faulty("dqn_trains_the_target", "optimizer has the target network", OUTSIDE),
    Faulty("writes_into_a_temporary", "one weight's updates are lost", FROZEN, twin="custom_optimizer"),
    Faulty("updates_a_clone", "matrices never change", FROZEN),
    Faulty("skips_the_last_rows", "last rows never change", FROZEN),
    Faulty("frozen_in_the_middle", "frozen weights keep moving", ("frozen-weights-moving",), checkable=101),
    Faulty("frozen_norms_drift", "frozen batch norm drifts", ("frozen-weights-moving",), twin="frozen_backbone"),
    Faulty(
        "never_stepped",
        "optimizer.step is never reached",
        ("optimizer-never-steps", *FROZEN),
        checkable=40,
    ),
    Faulty("ddp_bypassed", "DDP bypassed: ranks diverge", ("replicas-diverging",)),
    Faulty("ddp_clips_on_one_rank", "clipping on one rank: ranks diverge", ("replicas-diverging",)),
    Faulty("ddp_different_seeds", "ranks start with different weights", ("replicas-diverging",)),
    # data
    Faulty("first_batch_for_ever", "the same batch in each step", REPEATING, checkable=2, twin="plain_classifier"),
    Faulty("item_zero_always", "every sample is the first one", REPEATING, checkable=2),
    Faulty("sampler_stands_still", "the sampler does not advance", REPEATING, checkable=2),
    Faulty("batch_collapses", "batch 50 -> 1", ("batch-collapsed",), checkable=66),
    # resources
    Faulty("keeps_every_graph", "memory grows: graphs kept", ("memory-leak",)),
    Faulty("keeps_every_batch", "memory grows: batches kept", ("memory-leak",)),
    Faulty(
        "loader_gets_slower",
        "each epoch takes longer",
        ("epoch-time-blowup",),
        AT_THE_END,
    ),
    Faulty("loader_hangs", "waits for a lock forever", ("step-hang",), AT_THE_END, options=("--hang-after", "5")),
    # checkpoints
    Faulty("saves_another_model", "the file contains another model's weights", UNFAITHFUL, checkable=30),
    Faulty("saves_shifted_weights", "the file's tensors contain each other's values", UNFAITHFUL, checkable=100),
    Faulty("checkpoint_overflows", "the file contains infinities", UNFAITHFUL, checkable=200),
    Faulty("checkpoint_is_torn", "resumes from a truncated file", ("checkpoint-torn",), AT_THE_END),
    # exits
    Faulty("segfault", "segmentation fault", ("crashed-segfault",), AT_THE_END),
    Faulty("aborts", "abort() in the driver", ("command-buffer-reused", "crashed-abort"), AT_THE_END),
    Faulty("two_openmp_runtimes", "two OpenMP runtimes", ("openmp-duplicate",), AT_THE_END),
    Faulty("key_error", "KeyError", ("python-exception",), AT_THE_END),
    Faulty("exits_with_three", "exit status 3 without a traceback", ("exit-status-not-zero",), AT_THE_END),
    Faulty("leaves_without_a_word", "os._exit(1)", ("exit-status-not-zero",), AT_THE_END),
    Faulty("killed", "SIGKILL", ("killed-externally",), AT_THE_END),
    Faulty("worker_is_killed", "a loader worker is killed", ("python-exception", "killed-externally"), AT_THE_END),
    Faulty("assigner_shapes", "the assigner's shape mismatch", ("assigner-shape-mismatch",), AT_THE_END),
    Faulty("float64_on_mps", "float64 on MPS", ("float64-unsupported",), AT_THE_END),
    Faulty("operator_missing", "operator missing on MPS", ("op-not-implemented",), AT_THE_END),
    Faulty("torchvision_for_another_torch", "torchvision mismatch", ("torchvision-mismatch",), AT_THE_END),
    Faulty("device_memory_exhausted", "device out of memory", ("device-out-of-memory",), AT_THE_END),
    Faulty("disk_is_full", "no space left", ("disk-full",), AT_THE_END),
    # reported, and the run continues
    Faulty(
        "device_work_was_cut_short",
        "command buffer failed, run continues",
        ("command-buffer-failed",),
        checkable=301,
        platform="darwin",
    ),
    Faulty("nms_ran_out_of_time", "NMS gave up, metrics are wrong", ("nms-cut-short",), 240),
)

HEALTHY = (
    Healthy("plain_classifier", ""),
    Healthy("cnn_momentum", ""),
    Healthy("transformer_lm", ""),
    Healthy("fine_tune_new_head", "weights outside the optimizer"),
    Healthy("regression_class", ""),
    Healthy("gru_language", "a padding row that never moves"),
    Healthy("custom_optimizer", "an unknown optimizer over weights that are not contiguous"),
    Healthy("warmup_from_zero", "rate 0 at first"),
    Healthy("zero_rate_first_epoch", "rate 0 for a whole epoch"),
    Healthy("cosine_to_zero", "rate vanishing at the end"),
    Healthy("one_cycle", "rate vanishing at the end"),
    Healthy("warm_restarts", "rate vanishing, loss jumping"),
    Healthy("plateau_schedule", "rate falling, loss constant except for noise"),
    Healthy("padded_bag_of_words", "rows that never move"),
    Healthy("sparse_adam", "rows that rarely move, two optimizers"),
    Healthy("frozen_backbone", "weights that never move"),
    Healthy("linear_probe", "weights outside the optimizer"),
    Healthy("unused_head", "weights without gradients"),
    Healthy("layer_drop", "weights without gradients now and then"),
    Healthy("gan", "losses that do not fall, gradients left over"),
    Healthy("wgan_clipping", "losses below zero, weights clamped"),
    Healthy("policy_gradient_zero_surrogate", "all losses exactly 0"),
    Healthy("ppo_epochs", "loss near 0, batches repeating"),
    Healthy("dqn_target_network", "memory growing, a model that never gets a gradient"),
    Healthy("density_below_zero", "losses below zero"),
    Healthy("hinge_reaches_zero", "losses and gradients exactly 0 at the end"),
    Healthy("lbfgs_closure", "many backward passes per step"),
    Healthy("accumulation", "gradients left over"),
    Healthy("long_evaluations", "a hang, slow epochs"),
    Healthy("evaluation_with_gradients", "backward passes missing"),
    Healthy("cache_fills_and_stops", "a memory leak"),
    Healthy("ema_checkpoint", "a file that differs from the live weights"),
    Healthy("swa", "a file that differs from the live weights"),
    Healthy("half_precision_checkpoint", "a file that differs from the live weights"),
    Healthy("best_weights_at_end", "a file that differs from the live weights"),
    Healthy("saves_adapters_only", "a file that lacks most weights"),
    Healthy("bfloat16_weights", "weights that do not move"),
    Healthy("scaler_skips_a_few", "gradients that are not finite"),
    Healthy("checkpointing_reentrant", "backward passes inside backward passes"),
    Healthy("checkpointing_not_reentrant", "gradients left over"),
    Healthy("full_batch_loader", "always the same batch"),
    Healthy("two_batches_in_order", "the same batches again and again"),
    Healthy("variable_batches", "a batch that collapses"),
    Healthy("curriculum", "steps getting slower, loss rising"),
    Healthy("multitask_weight_zero_at_first", "zero gradients for part of the model"),
    Healthy("maml", "gradients computed outside the optimizer"),
    Healthy("k_fold", "loss rising, optimizers abandoned"),
    Healthy("loader_workers", "other processes"),
    Healthy("endless_stream", "an epoch that never ends"),
    Healthy("no_optimizer", "no step at all"),
    Healthy("step_in_backward", "no step after the backward"),
    Healthy("gradual_unfreezing", "weights outside the optimizer, frozen weights moving"),
    Healthy("decay_pulls_unused_rows", "rows with zero gradients"),
    Healthy("byol", "a model that moves without gradients"),
    Healthy("vae_kl_warmup", "loss rising"),
    Healthy("noisy_slow_fall", "loss not falling"),
    Healthy("early_stopping", "ending early"),
    Healthy("resumed_from_file", "loss hardly falling, another process"),
    Healthy("fine_tune_tiny_rate", "rate vanished, weights hardly moving"),
    Healthy("two_trainings", "loss rising, an optimizer abandoned"),
    Healthy("processes_beside", "a second training in the run"),
    Healthy("ddp_two_ranks", "ranks with different seeds"),
    Healthy("ddp_no_sync", "ranks with different gradients"),
    Healthy("contrastive", "loss at its worst value at first"),
    Healthy("autocast_bfloat16", ""),
    Healthy("gradient_penalty", "backward passes through gradients"),
    Healthy("distillation", "a model that never moves"),
    Healthy("rate_finder", "loss diverging"),
    Healthy("survives_its_own_errors", "an out-of-memory traceback"),
    Healthy("prints_scary_words", "the messages of many crashes"),
    Healthy("overfits_one_batch", "always the same batch"),
    Healthy("sparse_reward", "losses and gradients exactly 0 at first"),
    Healthy("triplet_easy_batches", "more and more losses exactly 0"),
    Healthy("compiled_model", ""),
    Healthy("lookahead", "an optimizer in an optimizer"),
)
