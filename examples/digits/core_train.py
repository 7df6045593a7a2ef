"""Digits with the Core API: a training loop of your own, with metrics, checkpoints and preemption from Resolute."""

import argparse
import pathlib

import digits
import torch
from torch import nn

import determined as det


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--resume", help="what to go on from: latest, a checkpoint's uuid, or a path")
    options = parser.parse_args()

    torch.manual_seed(0)
    train_set, test_set = digits.load()
    images, labels = train_set.tensors
    test_images, test_labels = test_set.tensors
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    with det.core.init(latest_checkpoint=options.resume) as core_context:
        first = 0
        if core_context.found:  # also when DET_LATEST_CHECKPOINT or a cluster says where to go on from
            with core_context.checkpoint.restore_path(core_context.found.storage_id) as path:
                saved = torch.load(path / "state.pt")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["epochs_done"]

        for epoch in range(first, options.epochs):
            # The order depends on the epoch alone, so that a resumed run sees the same batches.
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(50):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            done = epoch + 1
            core_context.train.report_training_metrics(steps_completed=done, metrics={"loss": loss.item()})
            with torch.no_grad():
                accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
            core_context.train.report_validation_metrics(steps_completed=done, metrics={"accuracy": accuracy})
            core_context.train.report_progress(done / options.epochs)
            with core_context.checkpoint.store_path({"steps_completed": done}) as (path, storage_id):
                save(path, model, optimizer, done)
            if core_context.preempt.should_preempt():
                print(f"stopped after epoch {done}; go on with --resume {storage_id}")
                return
    print(f"accuracy {accuracy:.3f}")


def save(path: pathlib.Path, model: nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs_done": done}
    torch.save(state, path / "state.pt")


if __name__ == "__main__":
    main()
