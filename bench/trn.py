"""Trial: tiles of the transposed product beside the others, on fresh sizes (not to land)."""
import random, sys
from bench import collect as c
from bench.model_sizes import WIDTHS, is_held_out, family
from bench.suites import kind_named
from unigemm.tuning.launch_draw import SampledLaunch
from unigemm.tuning.measure import Workload
from unigemm.tuning.sweep import starts, contenders
SEED = 61813
def problems(suite, counts):
    rng = random.Random(SEED); found = []
    for kind, count in counts.items():
        dtype, prec = kind_named(kind); n = 0
        while n < count:
            m = int(2 ** rng.uniform(6.1, 12.2)) // 8 * 8
            shape = (m, rng.choice(WIDTHS), rng.choice(WIDTHS))
            if m < 72 or not is_held_out(shape) or family(shape) != "ordinary": continue
            lay = ("nt", "nn", "tn")[n % 3] if kind != "float8_e4m3fn" else "nt"
            found.append(((n + .5) / count, kind, c.Todo(kind, Workload(*shape, dtype, lay, 1, precision=prec)))); n += 1
    return [x[2] for x in sorted(found, key=lambda x: x[:2])]
c.problems = problems
def draw(kind, offered):
    one = [p for p in offered if not p.config.swap_ab][:4]; seen = {}
    for p in offered:
        if p.config.swap_ab: seen.setdefault((p.config.tile, p.config.cluster), p)
    both = one + list(seen.values())[:6]
    from unigemm.tuning import launch_draw as d
    return [SampledLaunch(p, "best", name(p)) for p in both]
from unigemm.planning.registry import backend_named
def name(p):
    return f"{p.backend} {p.config} {p.problem} {p.extents}"
class D:
    def __init__(self, *a): pass
    def __call__(self, kind, offered): return draw(kind, offered)
c.LaunchDraw = D
if __name__ == "__main__":
    from bench.command import command
    command(c.main)
