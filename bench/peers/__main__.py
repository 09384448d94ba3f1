import sys, json
from pathlib import Path
from bench.peers.catalogue import SYSTEMS
from bench.peers.engine import Engines
from bench.peers.measurement import *
import tempfile
only=sys.argv[1].split(",") if len(sys.argv)>1 else None
secs=float(sys.argv[2]) if len(sys.argv)>2 else 6
with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as f, Engines(Path(f)) as e:
    for s in SYSTEMS:
        if only and s.name not in only: continue
        fig=Figures(); t=time.time()
        measure(s,e,Effort(secs),fig)
        print(s.label, {k:[round(x,1) for x in v] for k,v in fig.values.items()}, fig.trouble, round(time.time()-t), flush=True)
