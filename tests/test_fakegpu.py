"""The pretend CUDA device keeps its promises: what a CUDA program would see, and what was counted."""

from __future__ import annotations

import copy
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.fakegpu import CudaIsFake
from tests.running import ScriptFailed, run_on_cpu, run_on_fake_gpu, run_two_processes

pytest_plugins = "tests.fakegpu.fixture"
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="the pretend CUDA device needs a CPU build of torch")


# --- outside the context, and after it ---


def test_before_and_after_the_context_there_is_no_cuda() -> None:
    """Outside the context the process is one without CUDA, also when the pretend device was there before."""
    with CudaIsFake():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    assert not torch.accelerator.is_available()
    assert "to" not in vars(torch.Tensor)
    assert torch.Generator is torch._C.Generator
    for create in (lambda: torch.ones(1, device="cuda"), lambda: torch.ones(1).cuda(), lambda: torch.tensor([1], device="cuda")):
        with pytest.raises((AssertionError, RuntimeError), match="not compiled with CUDA|not linked with support for cuda"):
            create()


def test_after_the_context_a_loader_does_not_pin() -> None:
    """A loader that asks for pinned memory outside the context warns as on a machine without CUDA."""
    with CudaIsFake():
        pass
    with pytest.warns(UserWarning, match="no accelerator is found"):
        next(iter(DataLoader(TensorDataset(torch.ones(2)), pin_memory=True)))


def test_entering_twice_is_refused(fake_gpu: CudaIsFake) -> None:
    """The device is global to the process, so a second context inside the first raises."""
    with pytest.raises(RuntimeError, match="already active"), CudaIsFake():
        pass


def test_each_context_starts_fresh() -> None:
    """A new context has counted nothing and draws the same numbers as the one before it."""
    drawn = []
    for _ in range(2):
        with CudaIsFake() as gpu:
            assert not gpu.counts
            drawn.append(torch.rand(3, device="cuda").cpu())
    assert torch.equal(*drawn)


# --- what the device is called ---


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)], ids=str)
def test_every_spelling_of_the_device_creates_there(fake_gpu: CudaIsFake, device: Any) -> None:
    """Factories take the device by name or object, with and without index, and copy nothing."""
    made = [
        torch.zeros(2, device=device),
        torch.full((2,), 3.0, device=device),
        torch.arange(2, device=device),
        torch.randn(2, device=device),
        torch.zeros_like(torch.ones(2), device=device),
        nn.Linear(2, 2, device=device).weight,
    ]
    assert all(tensor.device == torch.device("cuda:0") for tensor in made)
    assert not fake_gpu.counts


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)], ids=str)
def test_every_spelling_of_the_device_copies_there(fake_gpu: CudaIsFake, device: Any) -> None:
    """Data of Python and tensors of the host are copied to the device, once each."""
    host = torch.ones(2)
    made = [torch.tensor([1.0, 2.0], device=device), torch.as_tensor([1.0], device=device), host.to(device), host.cuda(device)]
    assert all(tensor.is_cuda for tensor in made)
    assert fake_gpu.counts == {"h2d": 4}


def test_a_tensor_answers_as_a_cuda_tensor(fake_gpu: CudaIsFake) -> None:
    """Questions about where a tensor lives get the answers of a CUDA tensor."""
    tensor = torch.ones(2, device="cuda")
    assert tensor.device.type == "cuda"
    assert tensor.device.index == tensor.get_device() == 0
    assert tensor.is_cuda
    assert not tensor.is_cpu
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)


def test_the_machine_answers_as_one_with_cuda(fake_gpu: CudaIsFake) -> None:
    """Programs that ask what CUDA offers see one Ampere device."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability(0) == (8, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.cuda.set_device(0)
    with torch.cuda.device(0):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    assert fake_gpu.counts == {"sync": 1, "empty_cache": 1}


def test_an_older_capability_has_no_native_bfloat16() -> None:
    """A device of compute capability 7.0 supports bfloat16 only by emulation."""
    with CudaIsFake(capability=(7, 0)):
        assert torch.cuda.get_device_capability() == (7, 0)
        assert torch.cuda.is_bf16_supported()
        assert not torch.cuda.is_bf16_supported(including_emulation=False)


def test_a_second_device_does_not_exist(fake_gpu: CudaIsFake) -> None:
    """An index beyond the one device raises what CUDA raises."""
    for use in (lambda: torch.ones(1, device="cuda:1"), lambda: torch.ones(1).to("cuda:1"), lambda: torch.cuda.set_device(1)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()


def test_the_default_device_can_be_cuda(fake_gpu: CudaIsFake) -> None:
    """``with torch.device("cuda")`` moves factories and ``torch.tensor`` to the device."""
    with torch.device("cuda"):
        made = [torch.ones(2), torch.tensor([1.0]), torch.as_tensor([1.0]), nn.Linear(1, 1).bias]
    assert all(tensor.is_cuda for tensor in made)


def test_old_constructors_make_tensors_there(fake_gpu: CudaIsFake) -> None:
    """``torch.cuda.FloatTensor`` and ``.type(torch.cuda.LongTensor)`` work as in old code."""
    assert torch.cuda.FloatTensor([1.0]).is_cuda
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3)
    assert torch.ones(2).type(torch.cuda.LongTensor).dtype is torch.int64
    assert torch.ones(2).cuda().type(torch.FloatTensor).device.type == "cpu"
    assert torch.ones(2).cuda().new(3).is_cuda


# --- copies ---


def test_moving_to_where_a_tensor_is_gives_the_tensor(fake_gpu: CudaIsFake) -> None:
    """A move that is none returns the same object and counts nothing."""
    tensor = torch.ones(2, device="cuda")
    assert tensor.cuda() is tensor.to("cuda") is tensor.to(torch.device("cuda:0")) is tensor.to(tensor.device) is tensor
    assert not fake_gpu.counts


def test_copies_are_counted_by_direction_and_kind(fake_gpu: CudaIsFake) -> None:
    """Blocking, non-blocking and pinned copies are told apart, in both directions."""
    pinned = torch.ones(2).pin_memory()
    pinned.cuda(non_blocking=True)
    device = pinned[:1].to("cuda")
    torch.ones(2).to("cuda", non_blocking=True)
    device.cpu()
    device.to("cpu", non_blocking=True)
    torch.empty(1).copy_(device)
    device.copy_(torch.ones(1), non_blocking=True)
    assert fake_gpu.counts == {"pin": 1, "h2d": 4, "h2d_non_blocking": 3, "h2d_pinned": 2, "d2h": 3, "d2h_non_blocking": 1}


def test_reading_a_value_counts_a_synchronisation(fake_gpu: CudaIsFake) -> None:
    """Everything that makes the host wait for a value is counted once."""
    tensor = torch.ones(3, device="cuda")
    for waits in (
        lambda: tensor.sum().item(),
        lambda: float(tensor[0]),
        lambda: bool(tensor[0] > 0),
        lambda: tensor.nonzero(),
        lambda: tensor[tensor > 0],
        lambda: f"{tensor[0]:.3f}",
        lambda: repr(tensor),
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.Event().synchronize(),
    ):
        before = fake_gpu.counts["sync"]
        waits()
        assert fake_gpu.counts["sync"] == before + 1


def test_work_on_the_device_counts_nothing(fake_gpu: CudaIsFake) -> None:
    """Arithmetic, reductions and in-place work need neither copy nor synchronisation."""
    tensor = torch.ones(4, 4, device="cuda", requires_grad=True)
    ((tensor @ tensor).relu() + 1).mean().backward()
    tensor.grad.mul_(2).clamp_(-1, 1)
    assert not fake_gpu.counts


# --- what CUDA refuses ---


def test_mixed_devices_are_refused(fake_gpu: CudaIsFake) -> None:
    """Tensors of host and device do not meet in one operator, except a host tensor without dimensions."""
    device, host = torch.ones(2, device="cuda"), torch.ones(2)
    assert (device + torch.tensor(1.0)).is_cuda
    assert device[torch.tensor([0])].is_cuda
    for mix in (
        lambda: device + host,
        lambda: host + device[0],
        lambda: torch.cat([device, host]),
        lambda: device.index_select(0, torch.tensor([0])),
        lambda: host[torch.tensor([0], device="cuda")],
        lambda: nn.Linear(2, 2)(device),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mix()


def test_numpy_is_refused(fake_gpu: CudaIsFake) -> None:
    """An array cannot be made over device memory; by way of the host it can."""
    np = pytest.importorskip("numpy")
    tensor = torch.ones(2, device="cuda")
    for convert in (tensor.numpy, lambda: np.asarray(tensor)):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
            convert()
    assert tensor.cpu().numpy().tolist() == tensor.tolist() == [1.0, 1.0]


def test_pinning_a_device_tensor_is_refused(fake_gpu: CudaIsFake) -> None:
    """Only host tensors can be pinned."""
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        torch.ones(2, device="cuda").pin_memory()


def test_a_host_generator_on_the_device_is_refused(fake_gpu: CudaIsFake) -> None:
    """A generator must be of the device on which it draws."""
    assert torch.rand(2, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).is_cuda
    assert torch.rand(2, generator=torch.Generator().manual_seed(1)).device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())


# --- random numbers ---


def test_equal_seeds_give_other_numbers_than_on_the_host(fake_gpu: CudaIsFake) -> None:
    """The device's stream is its own, and drawing from it leaves the host's alone."""
    torch.manual_seed(7)
    host = torch.rand(4)
    torch.manual_seed(7)
    device = torch.rand(4, device="cuda")
    assert not torch.equal(device.cpu(), host)
    assert torch.equal(torch.rand(4), host)
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.rand(4, device="cuda"), device)


def test_the_state_of_the_stream_can_be_kept(fake_gpu: CudaIsFake) -> None:
    """A saved state replays the numbers drawn after it."""
    state = torch.cuda.get_rng_state()
    first = F.dropout(torch.ones(64, device="cuda"))
    torch.cuda.set_rng_state(state)
    assert torch.equal(F.dropout(torch.ones(64, device="cuda")), first)


# --- tensors as text, copies and files ---


def test_scalars_format_as_numbers(fake_gpu: CudaIsFake) -> None:
    """A tensor without dimensions formats as its value, with every way of formatting."""
    loss = torch.tensor(0.25, device="cuda")
    assert (f"{loss:.3f}", f"{loss}", "%.2f" % loss, "{:5.1f}".format(loss)) == ("0.250", "0.25", "0.25", "  0.2")  # noqa: UP031, UP032


def test_tensors_print_with_their_device(fake_gpu: CudaIsFake) -> None:
    """The printed form names device, dtype and graph as CUDA tensors do."""
    tensor = torch.ones(2, device="cuda", dtype=torch.float16)
    assert repr(tensor) == "tensor([1., 1.], device='cuda:0', dtype=torch.float16)"
    assert repr(nn.Parameter(torch.zeros(1)).cuda() * 1) == "tensor([0.], device='cuda:0', grad_fn=<MulBackward0>)"
    assert repr(nn.Linear(1, 1).cuda().bias.data.zero_()) == "tensor([0.], device='cuda:0')"


def test_deep_copies_stay_on_the_device_and_keep_ties(fake_gpu: CudaIsFake) -> None:
    """A copied model has parameters of its own on the device; parameters that were one stay one."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).cuda()
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert isinstance(twin[0].weight, nn.Parameter)
    assert twin[0].weight.is_cuda
    assert twin[0].weight is twin[1].weight is not model[0].weight
    twin[0].weight.data.zero_()
    assert model[0].weight.abs().sum().item() > 0


def _saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        (None, "cuda"),
        ("cuda:0", "cuda"),
        (torch.device("cuda"), "cuda"),
        ("cpu", "cpu"),
        ({"cuda:0": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.cuda(), "cuda"),
    ],
)
def test_checkpoints_come_back_where_they_are_mapped(fake_gpu: CudaIsFake, map_location: Any, device: str) -> None:
    """A checkpoint of the device is read to where ``map_location`` says, by default to where it came from."""
    model = nn.Linear(2, 2).cuda()
    file = _saved({"model": model.state_dict(), "epoch": 3})
    weight = torch.load(file, map_location=map_location)["model"]["weight"]
    assert weight.device.type == device
    assert torch.equal(weight.cpu(), model.weight.cpu())


def test_a_file_from_the_device_needs_mapping_on_a_machine_without() -> None:
    """Without CUDA a checkpoint of the device is refused, and read with ``map_location``."""
    with CudaIsFake():
        file = _saved(nn.Linear(2, 2).cuda().state_dict())
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["weight"].device.type == "cpu"


def test_a_whole_model_can_be_saved(fake_gpu: CudaIsFake) -> None:
    """A pickled module comes back with parameters on the device."""
    model = torch.load(_saved(nn.Linear(2, 2).cuda()), weights_only=False)
    assert isinstance(model.weight, nn.Parameter)
    assert model.weight.is_cuda


# --- modules and training ---


def test_a_module_keeps_its_parameters_when_it_moves(fake_gpu: CudaIsFake) -> None:
    """``module.cuda()`` moves the parameters that an optimizer already holds, as on CUDA, and back again."""
    model = nn.Linear(2, 2)
    weight = model.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = weight.detach().clone()
    model.cuda()
    assert model.weight is weight
    assert weight.is_cuda
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    model.to("cpu")
    assert model.weight is weight
    assert torch.equal(weight, before - 1)


def test_a_module_whose_weights_are_computed_can_move(fake_gpu: CudaIsFake) -> None:
    """Weight norm, which holds a graph over the parameters, does not keep a module from moving; running that graph raises."""
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    stale = model(torch.ones(1, 2)).sum()
    model.cuda()
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    assert all(parameter.grad.is_cuda for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="before its parameters were moved"):
        stale.backward()


def test_assigning_data_replaces_the_numbers(fake_gpu: CudaIsFake) -> None:
    """``parameter.data = tensor`` and ``module.half()`` change what later operators read."""
    parameter = nn.Parameter(torch.ones(2, device="cuda"))
    parameter.data = torch.zeros(3, device="cuda")
    assert parameter.tolist() == [0.0, 0.0, 0.0]
    assert nn.Linear(2, 2).cuda().half().weight.sum().dtype is torch.float16


def test_shapes_changed_in_place_are_seen(fake_gpu: CudaIsFake) -> None:
    """In-place operators that change a tensor's shape change it for every later question."""
    tensor = torch.ones(1, 3, device="cuda")
    assert tensor.squeeze_(0).shape == (3,)
    assert tensor.resize_(2).shape == (2,)
    assert tensor.sum().item() == 2


def test_views_share_memory_and_gradients(fake_gpu: CudaIsFake) -> None:
    """Writing through a view writes the base, and autograd knows."""
    base = torch.ones(2, 2, device="cuda", requires_grad=True)
    product = base * 1
    product[0] = 0
    product[:, 1].mul_(3)
    product.sum().backward()
    assert product.tolist() == [[0, 0], [1, 3]]
    assert base.grad.tolist() == [[0, 0], [1, 3]]


def test_threads_use_the_device_too(fake_gpu: CudaIsFake) -> None:
    """The device is there for every thread of the process, also for what autograd's threads call back."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * torch.full(gradient.shape, 2.0, device=gradient.device)

    gradients = []

    def work() -> None:
        x = torch.ones(2).cuda().requires_grad_()
        Twice.apply(x).sum().backward()
        gradients.append(x.grad.tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert gradients == [[2.0, 2.0]]


def test_streams_and_events_do_nothing_harmful(fake_gpu: CudaIsFake) -> None:
    """A prefetcher written with streams, and a timer written with events, run."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    start.record()
    with torch.cuda.stream(stream):
        batch = torch.ones(2).cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    batch.record_stream(torch.cuda.current_stream())
    end.record()
    assert start.elapsed_time(end) >= 0


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_agree_with_the_cpu(fake_gpu: CudaIsFake, name: str) -> None:
    """Recurrent networks train on the device, with outputs and gradients of the CPU up to rounding."""
    torch.manual_seed(0)
    on_cpu = getattr(nn, name)(3, 4)
    on_gpu = copy.deepcopy(on_cpu).cuda()
    x = torch.randn(5, 2, 3)
    on_cpu(x)[0].sum().backward()
    on_gpu(x.cuda())[0].sum().backward()
    for expected, actual in zip(on_cpu.parameters(), on_gpu.parameters()):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad)


@pytest.mark.parametrize("wrap", [lambda model: nn.DataParallel(model).cuda(), lambda model: nn.DataParallel(model.cuda(), [0])])
def test_data_parallel_passes_through(fake_gpu: CudaIsFake, wrap: Any) -> None:
    """DataParallel on the one device keeps ``.module`` and its prefix, and moves inputs there."""
    model = nn.Linear(2, 3)
    wrapped = wrap(model)
    assert wrapped.module is model
    assert wrapped.device_ids == [0]
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    assert wrapped(torch.ones(4, 2)).is_cuda
    wrapped.module.cpu()
    with pytest.raises(RuntimeError, match="module must have its parameters and buffers on device cuda:0"):
        wrapped(torch.ones(4, 2))


def _train(device: str, optimizer_class: Any = torch.optim.SGD, **options: Any) -> list[float]:
    """Six steps of a small network with convolution and batch norm on ``device``; its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).to(device)
    optimizer = optimizer_class(model.parameters(), lr=0.05, **options)
    images, labels = torch.randn(24, 1, 6, 6), torch.randint(0, 3, (24,))
    losses = []
    for batch, target in DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.to(device)), target.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_deterministic_training_equals_the_cpu(fake_gpu: CudaIsFake, optimizer: Any, options: dict[str, Any]) -> None:
    """A training loop without random numbers on the device prints the CPU's losses, bit for bit."""
    assert _train("cuda", optimizer, **options) == _train("cpu", optimizer, **options)


def test_a_pinning_loader_is_counted(fake_gpu: CudaIsFake) -> None:
    """Each tensor of each batch of a loader with ``pin_memory=True`` passes through pinning, and is pinned."""
    dataset = TensorDataset(torch.ones(6, 2), torch.ones(6))
    for x, y in DataLoader(dataset, batch_size=2, pin_memory=True):
        assert x.is_pinned()
        x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    assert fake_gpu.counts == {"pin": 6, "h2d": 6, "h2d_non_blocking": 6, "h2d_pinned": 6}


# --- mixed precision ---


def test_autocast_follows_the_lists_of_cuda(fake_gpu: CudaIsFake) -> None:
    """Products run in half precision, softmax and sums in float32, mixed arguments in the widest dtype."""
    x = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda"):
        product = x @ x
        assert torch.is_autocast_enabled()
        assert product.dtype is F.linear(x, x).dtype is product.relu().dtype is torch.float16
        assert product.softmax(-1).dtype is product.sum().dtype is product.exp().dtype is torch.float32
        assert product.softmax(-1, dtype=torch.float16).dtype is torch.float16
        assert torch.dot(product[0], x[0]).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
    assert (x @ x).dtype is torch.float32


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_spelling_of_autocast_works(fake_gpu: CudaIsFake) -> None:
    """The old classes, ``device.type``, the dtype argument and the decorators of custom functions reach the device."""
    x = torch.randn(2, 2, device="cuda")
    with torch.cuda.amp.autocast():
        assert (x @ x).dtype is torch.float16
    with torch.amp.autocast(x.device.type, dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.float32


def test_bce_loss_under_autocast_raises(fake_gpu: CudaIsFake) -> None:
    """BCELoss is refused under autocast as on CUDA; the form with logits is not."""
    x = torch.rand(4, device="cuda")
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.BCELoss()(x, x)
        assert nn.BCEWithLogitsLoss()(x, x).dtype is torch.float32
    assert nn.BCELoss()(x, x).dtype is torch.float32


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make_scaler", [lambda: torch.amp.GradScaler("cuda"), lambda: torch.cuda.amp.GradScaler()])
def test_training_with_a_scaler_in_half_precision(fake_gpu: CudaIsFake, make_scaler: Any) -> None:
    """The usual loop with autocast, scaler and clipping trains; a step with infinite gradients is skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = make_scaler()
    x, y = torch.randn(16, 4).cuda(), torch.randn(16, 1).cuda()
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 65536.0

    before = model[0].weight.detach().clone()
    scaler.scale(model(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model[0].weight, before)
    assert scaler.get_scale() == 32768.0


def test_a_forgotten_unscale_clips_scaled_gradients(fake_gpu: CudaIsFake) -> None:
    """Clipping before ``unscale_`` sees the scaled norm, so that the mistake shows in a test."""
    model = nn.Linear(2, 1, bias=False).cuda()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(torch.ones(1, 2, device="cuda")).sum()).backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() > 65536


# --- scripts ---


def _script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_a_script_runs_with_its_arguments_and_its_folder_on_the_path(tmp_path: Path) -> None:
    """The runner starts a script as Python would: its arguments, its neighbours, its ``__main__``."""
    (tmp_path / "neighbour.py").write_text("VALUE = 5\n")
    script = _script(
        tmp_path,
        """
import sys
import torch
from neighbour import VALUE

if __name__ == "__main__":
    x = torch.full((2,), float(VALUE)).cuda()
    print(sys.argv[1:], x.sum().item())
""",
    )
    printed, counts = run_on_fake_gpu(script, "--lr", "0.1")
    assert printed == "['--lr', '0.1'] 10.0\n"
    assert counts == {"h2d": 1, "sync": 1}


def test_a_failing_script_is_reported_with_its_words(tmp_path: Path) -> None:
    """A script that raises fails the test with what it printed; the counts are printed all the same."""
    script = _script(tmp_path, "import torch\nprint('before')\ntorch.ones(2).cuda() + torch.ones(2)\n")
    with pytest.raises(ScriptFailed, match="same device") as failure:
        run_on_fake_gpu(script)
    first, last = failure.value.stdout.splitlines()
    assert first == "before"
    assert json.loads(last) == {"fakegpu": {"h2d": 1}}
    with pytest.raises(ScriptFailed, match="not compiled with CUDA|not linked"):
        run_on_cpu(script)


def test_a_script_that_hangs_is_stopped(tmp_path: Path) -> None:
    """A script that does not end in time is ended, with what it had printed in the message."""
    script = _script(tmp_path, "import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    with pytest.raises(ScriptFailed, match="still running") as failure:
        run_on_cpu(script, timeout=2)
    assert failure.value.stdout == "waiting\n"


def test_the_capability_reaches_the_script(tmp_path: Path) -> None:
    """A script can be run on a device without bfloat16."""
    script = _script(tmp_path, "import torch\nprint(torch.cuda.get_device_capability()[0] >= 8)\n")
    assert run_on_fake_gpu(script, capability="7.0")[0] == "False\n"


def test_loader_workers_serve_the_device_but_must_not_use_it(tmp_path: Path) -> None:
    """Batches of worker processes are pinned and moved; a dataset that touches CUDA in a worker fails as on CUDA."""
    script = _script(
        tmp_path,
        """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        sample = torch.full((2,), float(index))
        return sample.cuda() if "in-worker" in sys.argv else sample

if __name__ == "__main__":
    torch.ones(1).cuda()
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    print(sum(batch.cuda(non_blocking=True).sum().item() for batch in loader))
""",
    )
    printed, counts = run_on_fake_gpu(script)
    assert printed == "30.0\n"
    assert counts == {"h2d": 4, "h2d_non_blocking": 3, "h2d_pinned": 3, "pin": 3, "sync": 3}
    with pytest.raises(ScriptFailed, match="Cannot re-initialize CUDA in forked subprocess"):
        run_on_fake_gpu(script, "in-worker")


def test_two_processes_form_a_group(tmp_path: Path) -> None:
    """A script under the launcher sees two ranks that can talk to each other."""
    script = _script(
        tmp_path,
        """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(dist.get_world_size(), total.item())
dist.destroy_process_group()
""",
    )
    assert run_two_processes(script) == "2 3.0\n"
