"""Options of scripts in many styles: base runs the script without options, and each setting's value reaches the script.

Where the library is installed, the script runs here with the words of its study, and `RESULT` is compared.
"""

import importlib
import io
import runpy
import shlex
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from ablations.service.script import study_of
from ablations.service.selected import task_of_study
from ablations.study.study import Study, load_study
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.tasks.own.placeholders import expanded


class Case(NamedTuple):
    """A script's text; the words of its options in the command; base; and why other options are left out."""

    script: str
    words: str
    base: dict[str, Any]
    left_out: Mapping[str, str] = MappingProxyType({})
    given: str = "train.py"
    library: str = "argparse"


A = "import argparse\np = argparse.ArgumentParser()\n"
E = "RESULT = vars(p.parse_args())\n"
CASES = {
    "action class of the script": Case(
        A + "class Pairs(argparse.Action):\n    def __call__(self, parser, space, value, flag=None):\n"
        "        setattr(space, self.dest, dict(v.split('=') for v in value))\n"
        "p.add_argument('--options', nargs='+', action=Pairs, default={})\n"
        "p.add_argument('--depth', type=int, default=2)\n" + E,
        "--depth {depth}", {"depth": 2}, {"options": "its action is Pairs"},
    ),
    "nargs, append, count, extend": Case(
        A + "p.add_argument('--sizes', nargs='+', type=int, default=[8, 4])\n"
        "p.add_argument('--pair', nargs=2, type=float, default=(0.9, 0.99))\n"
        "p.add_argument('--layer', action='append', default=['a'])\n"
        "p.add_argument('-v', '--verbose', action='count', default=0)\n"
        "p.add_argument('--more', action='extend', nargs='*', default=[])\n"
        "p.add_argument('--warmup', nargs='?', type=int, const=100, default=0)\n" + E,
        "--warmup {warmup}", {"warmup": 0},
        {"sizes": "several values", "pair": "several values", "layer": "several times", "verbose": "several times",
         "more": "several times"},
    ),
    "choices": Case(
        A + "NAMES = sorted({'cos': 1, 'lin': 2})\n"
        "p.add_argument('--schedule', choices=('cos', 'lin'), default='lin')\n"
        "p.add_argument('--depth', type=int, choices=range(1, 5), default=2)\n"
        "p.add_argument('--arch', choices=NAMES, default='cos')\n"
        "p.add_argument('--loss', choices=['l1', 'l2'], default='auto')\n" + E,
        "--schedule {schedule} --depth {depth} --arch {arch}",
        {"schedule": "lin", "depth": 2, "arch": "cos"}, {"loss": "none of its choices"},
    ),
    "BooleanOptionalAction": Case(
        A + "p.add_argument('--ema', action=argparse.BooleanOptionalAction, default=True)\n"
        "p.add_argument('--amp', action=argparse.BooleanOptionalAction)\n" + E,
        "{ema:--ema|--no-ema}", {"ema": True}, {"amp": "no default"},
    ),
    "parents and groups": Case(
        "import argparse\ncommon = argparse.ArgumentParser(add_help=False)\n"
        "g = common.add_argument_group('optimizer')\ng.add_argument('--lr', type=float, default=1e-3)\n"
        "p = argparse.ArgumentParser(parents=[common])\np.add_argument('--width', type=int, default=8)\n" + E,
        "--lr {lr} --width {width}", {"lr": 0.001, "width": 8},
    ),
    "set_defaults": Case(
        A + "p.add_argument('--lr', type=float, default=0.1)\np.add_argument('--fast', action='store_true')\n"
        "p.add_argument('--late', type=int, default=1)\np.set_defaults(lr=0.5, fast=True, late=int(1e3))\n" + E,
        "--lr {lr}", {"lr": 0.5}, {"fast": "it is always True", "late": "its default is computed: int(1000.0)"},
    ),
    "a subclass, a function and a namespace that is merged": Case(
        "import argparse\nclass Parser(argparse.ArgumentParser):\n    pass\n"
        "def add_model(parser):\n    parser.add_argument('--heads', type=int, default=4)\n    return parser\n"
        "def options():\n    parser = argparse.ArgumentParser()\n    parser = add_model(parser)\n"
        "    parser.add_argument('--lr', type=float, default=0.1)\n    return parser.parse_args()\n"
        "a = argparse.Namespace(**{'extra': 1, **vars(options())})\nRESULT = vars(a)\n",
        "--lr {lr} --heads {heads}", {"heads": 4, "lr": 0.1},
    ),
    "options in classes, as CycleGAN has": Case(
        "import argparse\nclass Base:\n    def initialize(self, parser):\n"
        "        parser.add_argument('--ngf', type=int, default=64)\n        return parser\n"
        "    def parse(self):\n        parser = argparse.ArgumentParser()\n        parser = self.initialize(parser)\n"
        "        self.parser = parser\n        return self.parser.parse_args()\n"
        "class Train(Base):\n    def initialize(self, parser):\n        parser = Base.initialize(self, parser)\n"
        "        parser.add_argument('--beta1', type=float, default=0.5)\n        return parser\n"
        "RESULT = vars(Train().parse())\n",
        "--ngf {ngf} --beta1 {beta1}", {"beta1": 0.5, "ngf": 64},
    ),
    "two parsers in turn, as timm has": Case(
        "import argparse\nconfig_parser = parser = argparse.ArgumentParser(add_help=False)\n"
        "parser.add_argument('-c', '--config', default='')\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--drop', type=float, default=0.0)\n"
        "args_config, remaining = config_parser.parse_known_args()\n"
        "if args_config.config:\n    parser.set_defaults(**{})\n"
        "RESULT = {**vars(args_config), **vars(parser.parse_args(remaining))}\n",
        "--config {config} --drop {drop}", {"config": "", "drop": 0.0},
    ),
    "converters": Case(
        A + "def str2bool(v):\n    if isinstance(v, bool):\n        return v\n"
        "    if v.lower() in ('yes', 'true', 't'):\n        return True\n"
        "    elif v.lower() in ('no', 'false', 'f'):\n        return False\n    raise ValueError(v)\n"
        "p.add_argument('--cuda', type=str2bool, nargs='?', const=True, default=True)\n"
        "p.add_argument('--ema', type=bool, default=False)\n"
        "p.add_argument('--track', type=lambda x: x == 'True', default=False)\n"
        "p.add_argument('--freeze', type=lambda x: x.lower() == 'true', default=True)\n"
        "p.add_argument('--steps', type=lambda x: int(float(x)), default=1000)\n"
        "p.add_argument('--total', type=int, default=1e6)\n"
        "p.add_argument('--text-rate', type=float, default='0.25')\n"
        "p.add_argument('--ratio', type=int, default=0.5)\n"
        "p.add_argument('--plain', default=3)\n"
        "p.add_argument('--even', type=lambda v: int(v) // 2 * 2, default=4)\n"
        "p.add_argument('--code', type=eval, default=True)\n"
        "p.add_argument('--prompt', default='-x {lr} $HOME \"q\"')\n" + E,
        "{cuda:--cuda=true|--cuda=false} {ema:--ema=true|--ema=} {track:--track=True|--track=false} "
        "{freeze:--freeze=true|--freeze=false} --steps {steps} --total {total} --text-rate {text_rate} "
        "{code:--code=True|--code=False} --prompt={prompt}",
        {"cuda": True, "ema": False, "track": False, "freeze": True, "steps": 1000, "total": 1_000_000,
         "text_rate": 0.25, "code": True, "prompt": '-x {lr} $HOME "q"'},
        {"ratio": "int never returns its default 0.5", "plain": "its default 3 is no text", "even": "not known"},
    ),
    "exclusive and conditional": Case(
        A + "g = p.add_mutually_exclusive_group()\ng.add_argument('--steps', type=int, default=0)\n"
        "g.add_argument('--epochs', type=int, default=3)\nimport sys\n"
        "if sys.platform == 'linux':\n    p.add_argument('--numa', type=int, default=1)\n"
        "for name in ('a', 'b'):\n    p.add_argument(f'--{name}', type=int, default=1)\n"
        "for q in (p,):\n    q.add_argument('--lr', type=float, default=0.1)\n" + E,
        "--lr {lr}", {"lr": 0.1},
        {"steps": "only one of --epochs, --steps may be given", "epochs": "only one of", "numa": "under a condition"},
    ),
    "argument_default, SUPPRESS and required": Case(
        "import argparse\np = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)\n"
        "p.add_argument('--lr', type=float)\np.add_argument('--wd', default=argparse.SUPPRESS, type=float)\n"
        "p.add_argument('--tiny', action='store_true')\np.add_argument('--data', required=True)\n"
        "p.add_argument('--model', '-m', required=True)\np.add_argument('--seed', type=int, required=True)\n" + E,
        "{tiny:--tiny} --seed {seed}", {"tiny": False}, {"lr": "no default", "wd": "no default"},
        given="python train.py -m x --data=y",
    ),
    "subcommands with a shared parent": Case(
        "import argparse\ncommon = argparse.ArgumentParser(add_help=False)\n"
        "common.add_argument('--seed', type=int, default=0)\n"
        "p = argparse.ArgumentParser()\np.add_argument('--root', default='data')\n"
        "sub = p.add_subparsers(dest='what')\ntrain = sub.add_parser('train', aliases=['t'], parents=[common])\n"
        "train.add_argument('--lr', type=float, default=0.1)\n"
        "test = sub.add_parser('test', parents=[common])\ntest.add_argument('--beam', type=int, default=4)\n" + E,
        "--root {root} t --seed {seed} --lr {lr}", {"root": "data", "lr": 0.1}, given="python train.py t",
    ),
    "optparse": Case(
        "from optparse import OptionParser, OptionGroup\np = OptionParser()\n"
        "p.add_option('-r', '--rate', type='float', default=0.5, help='speed')\n"
        "p.add_option('--deep', action='store_true', default=False)\np.add_option('--plain', default=3)\n"
        "g = OptionGroup(p, 'more')\ng.add_option('--width', type='int', default=8)\np.add_option_group(g)\n"
        "RESULT = vars(p.parse_args()[0])\n",
        "--rate {rate} {deep:--deep} --width {width}", {"rate": 0.5, "deep": False, "width": 8},
        {"plain": "its default 3 is no text"},
    ),
    "abbreviations, negative numbers and names that are taken": Case(
        A + "p.add_argument('--epochs', type=int, default=3)\np.add_argument('--shift', type=float, default=-1e-05)\n"
        "p.add_argument('--modules', type=int, default=1)\np.add_argument('--described', type=int, default=2)\n"
        "p.add_argument('--threads', type=int, default=2)\np.add_argument('-j', '--jobs', type=int, default=2)\n" + E,
        "--shift={shift} --modules {modules} --described {described_} --threads {threads_}",
        {"shift": -1e-05, "modules": 1, "described_": 2, "threads_": 2}, given="python train.py --epo 4 -j8",
    ),
    "a fixed command line is no command line": Case(
        A + "p.add_argument('--lr', type=float, default=0.1)\nRESULT = vars(p.parse_args([]))\n", "", {},
    ),
    "click, a group": Case(
        "import click\n@click.group()\n@click.option('--debug/--no-debug', default=False)\n"
        "@click.pass_context\ndef cli(ctx, debug):\n    ctx.obj = debug\n"
        "@cli.command('fit')\n@click.option('-l', '--lr', 'rate', type=float, default=1, show_default=True)\n"
        "@click.option('--kind', type=click.Choice(['a', 'b']), default='b')\n"
        "@click.option('--nesterov', is_flag=True)\n@click.option('--amp', is_flag=True, default=True)\n"
        "@click.option('--tag', multiple=True)\n@click.option('--bias', type=bool, default=True)\n"
        "@click.pass_context\ndef fit(ctx, **options):\n    global RESULT\n    RESULT = {'debug': ctx.obj, **options}\n"
        "@cli.command()\n@click.option('--opset', default=12)\ndef export_onnx(opset):\n    pass\n"
        "cli(standalone_mode=False)\n",
        "{debug:--debug|--no-debug} fit --lr {rate} --kind {kind} {nesterov:--nesterov} --bias {bias}",
        {"debug": False, "rate": 1.0, "kind": "b", "nesterov": False, "bias": True},
        {"amp": "on by default", "tag": "several times"}, given="python train.py fit", library="click",
    ),
    "typer, an app with one command": Case(
        "import typer, enum\nfrom typing import Annotated, List, Optional\napp = typer.Typer()\n"
        "class Kind(str, enum.Enum):\n    a = 'a'\n"
        "@app.command()\ndef main(width: int = 8, rate: Annotated[float, typer.Option('--lr', help='rate')] = 1,\n"
        "         bias: bool = True, quiet: bool = typer.Option(False, '--quiet'), kind: Kind = Kind.a,\n"
        "         names: Optional[List[str]] = typer.Option(['x'])):\n"
        "    global RESULT\n    RESULT = dict(width=width, rate=rate, bias=bias, quiet=quiet)\n"
        "app(standalone_mode=False)\n",
        "--width {width} --lr {rate} {bias:--bias|--no-bias} {quiet:--quiet}",
        {"width": 8, "rate": 1.0, "bias": True, "quiet": False},
        {"kind": "computed: Kind.a", "names": "several values"}, library="typer",
    ),
    "fire": Case(
        "import fire\ndef main(lr=0.1, layers: int = 4, act='gelu', size='10', norm=True, sizes=(1, 2)):\n"
        "    global RESULT\n    RESULT = dict(lr=lr, layers=layers, act=act, size=size, norm=norm)\n"
        "fire.Fire(main)\n",
        "--lr={lr} --layers={layers} --act={act} {norm:--norm=True|--norm=False}",
        {"lr": 0.1, "layers": 4, "act": "gelu", "norm": True},
        {"size": "reads '10' as Python", "sizes": "several values"}, library="fire",
    ),
    "absl": Case(
        "from absl import app, flags\nFLAGS = flags.FLAGS\n"
        "flags.DEFINE_float('lr', 0.1, 'rate')\n_W = flags.DEFINE_integer('width', 8, 'width')\n"
        "flags.DEFINE_bool('bias', True, 'bias')\nflags.DEFINE_enum('opt', 'sgd', ['sgd', 'adam'], 'which')\n"
        "flags.DEFINE_string('dir', None, 'where')\nflags.DEFINE_list('names', ['a'], 'names')\n"
        "def main(argv):\n    global RESULT\n    RESULT = {n: FLAGS[n].value for n in ('lr', 'width', 'bias', 'opt')}\n"
        "try:\n    app.run(main)\nexcept SystemExit:\n    pass\n",
        "--lr {lr} --width {width} {bias:--bias|--nobias} --opt {opt}",
        {"lr": 0.1, "width": 8, "bias": True, "opt": "sgd"},
        {"dir": "no default", "names": "not known"}, library="absl",
    ),
    "HfArgumentParser with inheritance and a class of a library": Case(
        "from dataclasses import dataclass, field\nfrom typing import Optional, List\n"
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "@dataclass\nclass Base:\n    layers: int = 4\n"
        "@dataclass\nclass ModelArguments(Base):\n    dropout: float = field(default=0, metadata={'help': 'd'})\n"
        "    tied: bool = field(default=False)\n    name: Optional[str] = None\n"
        "    sizes: List[int] = field(default_factory=lambda: [1])\n"
        "@dataclass\nclass Collator:\n    width: int = 8\n"
        "parser = HfArgumentParser((ModelArguments, TrainingArguments))\n"
        "model, train = parser.parse_args_into_dataclasses()\n",
        "--layers {layers} --dropout {dropout} --tied {tied}",
        {"layers": 4, "dropout": 0.0, "tied": False},
        {"name": "no default", "sizes": "computed", "": "the options of TrainingArguments are not read"},
        library="transformers",
    ),
    "tyro, nested with changed defaults": Case(
        "from dataclasses import dataclass, field\nimport dataclasses, tyro\nfrom typing import Tuple, Literal\n"
        "@dataclass\nclass Optimizer:\n    lr: float = 0.1\n    use_nesterov: bool = False\n"
        "@dataclass\nclass Config:\n    first: Optimizer = field(default_factory=lambda: Optimizer(lr=0.5))\n"
        "    second_one: Optimizer = field(default_factory=Optimizer)\n"
        "    kind: Literal['a', 'b'] = 'a'\n    sizes: Tuple[int, int] = (1, 2)\n    steps: int = 10**3\n"
        "RESULT = dataclasses.asdict(tyro.cli(Config))\n",
        "--first.lr {first.lr} {first.use_nesterov:--first.use-nesterov|--first.no-use-nesterov} "
        "--second-one.lr {second_one.lr} "
        "{second_one.use_nesterov:--second-one.use-nesterov|--second-one.no-use-nesterov} --kind {kind}",
        {"first.lr": 0.5, "first.use_nesterov": False, "second_one.lr": 0.1, "second_one.use_nesterov": False,
         "kind": "a"},
        {"sizes": "several values", "steps": "computed: 10 ** 3"}, library="tyro",
    ),
    "tyro with a configuration of its own": Case(
        "from dataclasses import dataclass\nimport tyro\n@dataclass\nclass Config:\n    bias: bool = True\n"
        "tyro.cli(Config, config=(tyro.conf.FlagConversionOff,))\n",
        "", {}, {"bias": "changes the options"}, library="tyro",
    ),
    "draccus": Case(
        "from dataclasses import dataclass, field, asdict\nimport draccus\n"
        "@dataclass\nclass Optim:\n    lr: float = 0.1\n    amsgrad: bool = False\n"
        "@dataclass\nclass Config:\n    optim: Optim = field(default_factory=Optim)\n    num_layers: int = 4\n"
        "@draccus.wrap()\ndef main(cfg: Config):\n    global RESULT\n    RESULT = asdict(cfg)\nmain()\n",
        "--optim.lr {optim.lr} --optim.amsgrad {optim.amsgrad} --num_layers {num_layers}",
        {"optim.lr": 0.1, "optim.amsgrad": False, "num_layers": 4}, library="draccus",
    ),
    "simple_parsing": Case(
        "from dataclasses import dataclass, field, asdict\nfrom simple_parsing import ArgumentParser\n"
        "@dataclass\nclass Inner:\n    depth: int = 2\n"
        "@dataclass\nclass Config:\n    lr: float = 0.1  # rate\n    tied: bool = False\n"
        "    inner: Inner = field(default_factory=Inner)\n"
        "parser = ArgumentParser()\nparser.add_arguments(Config, dest='config')\n"
        "RESULT = asdict(parser.parse_args().config)\n",
        "--lr {lr} --tied {tied}", {"lr": 0.1, "tied": False}, {"inner": "chooses the names of the options"},
        library="simple_parsing",
    ),
    "jsonargparse": Case(
        "from jsonargparse import CLI\n"
        "def main(lr: float = 0.1, layers: int = 4, bias: bool = True, name: str = 'x', sizes: list = [1]):\n"
        "    global RESULT\n    RESULT = dict(lr=lr, layers=layers, bias=bias, name=name)\n"
        "CLI(main)\n",
        "--lr {lr} --layers {layers} --bias {bias} --name {name}",
        {"lr": 0.1, "layers": 4, "bias": True, "name": "x"}, {"sizes": "several values"}, library="jsonargparse",
    ),
    "LightningCLI": Case(
        "from lightning.pytorch.cli import LightningCLI\nimport lightning\n"
        "class Net(lightning.LightningModule):\n"
        "    def __init__(self, width: int = 8, lr: float = 0.1):\n        pass\n"
        "class Data(lightning.LightningDataModule):\n    def __init__(self, batch_size: int = 32):\n        pass\n"
        "LightningCLI(Net, Data)\n",
        "fit --model.width {model.width} --model.lr {model.lr} --data.batch_size {data.batch_size}",
        {"model.width": 8, "model.lr": 0.1, "data.batch_size": 32}, given="python train.py fit", library="lightning",
    ),
    "hydra with a structured configuration": Case(
        "from dataclasses import dataclass, field\nimport hydra\nfrom hydra.core.config_store import ConfigStore\n"
        "@dataclass\nclass Net:\n    width: int = 8\n    name: str = 'a=b, c'\n"
        "@dataclass\nclass Config:\n    net: Net = field(default_factory=Net)\n"
        "    lr: float = 0.1\n    amp: bool = False\n"
        "ConfigStore.instance().store(name='config', node=Config)\n"
        "@hydra.main(version_base=None, config_name='config')\ndef main(cfg):\n    global RESULT\n"
        "    from omegaconf import OmegaConf\n    RESULT = OmegaConf.to_container(cfg)\nmain()\n",
        r"net.width={net.width} net.name=\'{net.name}\' lr={lr} amp={amp}",
        {"net.width": 8, "net.name": "a=b, c", "lr": 0.1, "amp": False}, library="hydra",
    ),
    "sacred, ml_collections, OmegaConf, docopt: nothing is found": Case(
        "from omegaconf import OmegaConf\ncfg = OmegaConf.merge(OmegaConf.create({'lr': 0.1}), OmegaConf.from_cli())\n"
        "print('acc', cfg.lr)\n", "", {}, {"": "No options found in train.py can be settings."}, library="omegaconf",
    ),
}  # fmt: skip


def written(tmp_path, case: Case) -> tuple[Study, str]:
    (tmp_path / "train.py").write_text(case.script + "\nprint('test_acc', 1)\n")
    text = study_of("mine", case.given, tmp_path).text
    (tmp_path / "mine.toml").write_text(text)
    study = load_study(str(tmp_path / "mine.toml"))
    task_of_study(study)
    return study, text


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_options_become_settings_or_are_left_out_with_the_reason(tmp_path, case):
    study, text = written(tmp_path, case)
    head = case.given if " " in case.given else "python train.py"
    given = head.rpartition(" t")[0] if case.given.endswith(" t") else head  # a subcommand that stands in the words
    given = given.removesuffix(" fit")
    assert study.command.removeprefix(given).strip() == case.words
    assert dict(flatten(study.base)) == case.base
    base = text[text.index("[base]") :]
    for name, why in case.left_out.items():
        line = next(line for line in base.splitlines() if line.startswith(f"# {name}") and why in line)
        assert "[[" not in line


HYDRA = """
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print("acc", 1)
main()
"""
CONF = {
    "config": "defaults:\n  - basis\n  - model: mlp\n  - _self_\nlr: 1e-4\nmodel:\n  depth: 9\nwd: 0.1\nname: null\n",
    "basis": "wd: 0.5\nclip: 2\n",
    "other": "lr: 0.3\n",
    "chain": "defaults:\n  - config\nlr: 0.3\n",
    "model/mlp": "width: 8\ndepth: 2\n_target_: a.B\nmlp_only: 1\n",
    "model/cnn": "width: 16\ndepth: 3\n_target_: a.C\n",
    "experiment/tiny": "# @package _global_\nlr: 0.9\n",
}


@pytest.mark.parametrize(
    ("given", "words", "base"),
    [
        ("", "model={model_} clip={clip} model.width={model.width} lr={lr}",
         {"model_": "mlp", "clip": 2, "model.width": 8, "lr": 1e-4}),
        ("model=cnn", "clip={clip} model.width={model.width} lr={lr}", {"clip": 2, "model.width": 16, "lr": 1e-4}),
        ("lr=3 ~clip", "model={model_} model.width={model.width}", {"model_": "mlp", "model.width": 8}),
        ("--config-name other", "lr={lr}", {"lr": 0.3}),
        ("--config-name=chain", "", {}),
        ("+experiment=tiny", "", {}),
        ("--config-path elsewhere", "", {}),
    ],
)  # fmt: skip
def test_keys_of_hydra_are_those_of_the_command_s_own_choices(tmp_path, given, words, base):
    """A key that several files have, or that another choice may change, is no setting."""
    for name, text in CONF.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / f"{name}.yaml").write_text(text)
    command = f"python train.py {given}".strip()
    study, text = written(tmp_path, Case(HYDRA, words, base, given=command))
    assert study.command == f"{shlex.join(shlex.split(command))} {words}".strip()
    assert dict(flatten(study.base)) == base
    if not base:
        assert "its keys are not read" in text or "so their keys are not read" in text


@pytest.mark.parametrize(
    "given", ["--config exp.json", "--cfg=exp.json", "-c exp.json", "@exp.json", "--hparams exp.json"]
)
def test_options_are_left_out_where_a_configuration_file_may_set_them(tmp_path, given):
    (tmp_path / "exp.json").write_text('{"lr": 0.5}')
    case = Case(A + "p.add_argument('--lr', type=float, default=0.1)\n" + E, "", {}, given=f"python train.py {given}")
    study, text = written(tmp_path, case)
    assert study.command == case.given and "exp.json in the command may set it" in text
    case = case._replace(given="python train.py --data exp.json")
    assert written(tmp_path, case)[0].command == "python train.py --data exp.json --lr {lr}"


def result(script, words, library) -> dict[str, Any]:
    """Return the values that a script gets from its options."""
    before, sys.argv = sys.argv, [str(script), *words]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            made = runpy.run_path(str(script), run_name="__main__")["RESULT"]
    finally:
        sys.argv = before
    return dict(flatten(made)) if library in ("tyro", "draccus", "hydra") else made


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "RESULT" in case.script and case.base])
def test_base_is_the_script_without_options_and_every_other_value_reaches_it(tmp_path, monkeypatch, name):
    case = CASES[name]
    try:
        importlib.import_module(case.library)
    except ImportError:
        pytest.skip(f"{case.library} is not installed")
    monkeypatch.chdir(tmp_path)
    study, _ = written(tmp_path, case)
    start = len(shlex.split(study.command[: study.command.index("train.py") + 8]))

    def words(**changed: Any) -> list[str]:
        values = {**dict(flatten(study.base)), **changed, "seed": 0}
        return shlex.split(expanded(study.command, values))[start:]

    given = shlex.split(case.given)[2:]
    given += [] if "required" not in name else ["--seed", "0"]
    plain = result(tmp_path / "train.py", given, case.library)
    assert result(tmp_path / "train.py", words(), case.library) == plain
    for setting, value in case.base.items():
        if not isinstance(value, str):
            other = (not value) if isinstance(value, bool) else value + 1
            made = result(tmp_path / "train.py", words(**{setting: other}), case.library)
            unlike = [key for key in {**plain, **made} if made.get(key) != plain.get(key)]
            assert len(unlike) == 1 and made[unlike[0]] == other


@pytest.mark.parametrize(
    ("script", "given", "said"),
    [
        (CASES["subcommands with a shared parent"].script, "train.py", "subcommands train, test"),
        (CASES["click, a group"].script, "train.py", "subcommands fit, export-onnx"),
        (CASES["LightningCLI"].script, "train.py", "subcommands fit, validate"),
        (A + "p.add_argument('--n', type=int, required=True)\n" + E, "train.py", r"requires --n\."),
        (A + "p.add_argument('data')\n" + E, "python train.py --verbose", r"requires data\."),
        ("import click\n@click.command()\n@click.argument('src')\ndef f(src): pass\nf()\n", "train.py", "requires src"),
        (A + E, "train.py 'x", "not a valid shell command"),
        ("def f(:\n", "train.py", "not valid Python"),
    ],
)  # fmt: skip
def test_what_must_be_chosen_or_given_is_asked_for(tmp_path, script, given, said):
    (tmp_path / "train.py").write_text(script)
    with pytest.raises(UserError, match=said):
        study_of("mine", given, tmp_path)
