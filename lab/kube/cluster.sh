#!/usr/bin/env bash
# One node of Kubernetes on this machine, as processes: etcd, apiserver, controllers, scheduler, containerd, kubelet, kube-proxy,
# CoreDNS. As root; everything is kept below DIR, which has bin/etcd (engine.sh install).
#   cluster.sh build DIR           builds bin/hyperkube of the Go modules in hyperkube/, and bin/helm (about ten minutes on two cores)
#   cluster.sh up DIR              starts the node; DIR/admin.kubeconfig reaches it
#   cluster.sh load DIR IMAGE...   copies images of Docker's engine into it
#   cluster.sh down DIR            stops the pods and the node
# shellcheck disable=SC2086,SC2046 # no path here has a space
set -e
D=$(readlink -m "$2"); H=$(dirname "$(readlink -f "$0")"); K=$D/bin/hyperkube
C="ctr -a $D/containerd/containerd.sock -n k8s.io"
VERSION=$(sed -nE 's#^.*k8s.io/kubernetes v(1[0-9.]+)$#\1#p' $H/hyperkube/go.mod | head -1)

start() { # name command...
  local name=$1; shift
  setsid "$@" > $D/log/$name.log 2>&1 < /dev/null & echo $! > $D/pid/$name
}
until_ok() { for _ in $(seq ${2:-240}); do eval "$1" >/dev/null 2>&1 && return; sleep 1; done; echo "not there: $1"; exit 1; }


build() {
  local set="-X k8s.io/component-base/version.gitVersion=v$VERSION -X k8s.io/client-go/pkg/version.gitVersion=v$VERSION"
  mkdir -p $D/bin; cp -r $H/hyperkube $D/source; cd $D/source
  CGO_ENABLED=0 nice -n 10 go build -mod=mod -trimpath -ldflags "-s -w $set" -o $K .
  ln -sf hyperkube $D/bin/kubectl; rm -rf $D/source
  CGO_ENABLED=0 GOBIN=$D/bin nice -n 10 go install -buildvcs=false -ldflags "-s -w" helm.sh/helm/v3/cmd/helm@v3.19.0
}

load() { docker save "$@" | $C images import - > /dev/null; }

up() {
mkdir -p $D/{pki,etcd,log,pid,containerd,kubelet,cni/net.d}
IP=$(ip -4 -br a show dev "$(ip r | awk '/^default/{print $5; exit}')" | awk '{print $3}' | cut -d/ -f1)
NODE=$(hostname | tr A-Z a-z)
# --- keys
cd $D/pki
if [ ! -f ca.crt ]; then
  openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3650 -subj /CN=ca 2>/dev/null
  openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
  cert() { # file subject extensions
    openssl req -newkey rsa:2048 -nodes -keyout $1.key -out $1.csr -subj "$2" 2>/dev/null
    openssl x509 -req -in $1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out $1.crt -extfile <(printf '%s\n' "$3") 2>/dev/null
  }
  cert apiserver /CN=kube-apiserver "subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:10.96.0.1,IP:127.0.0.1,IP:$IP"
  cert kubelet /O=system:nodes/CN=system:node:$NODE "subjectAltName=DNS:$NODE,IP:$IP"
  cert admin /O=system:masters/CN=admin "extendedKeyUsage=clientAuth"
fi
kubeconfig() { # file cert
cat > $D/$1.kubeconfig <<E
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $D/pki/ca.crt}}]
users: [{name: u, user: {client-certificate: $D/pki/$2.crt, client-key: $D/pki/$2.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
E
}
kubeconfig admin admin; kubeconfig kubelet kubelet
export KUBECONFIG=$D/admin.kubeconfig

# --- control plane
start etcd $D/bin/etcd --data-dir $D/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
start apiserver $K kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address $IP --secure-port 6443 \
  --tls-cert-file apiserver.crt --tls-private-key-file apiserver.key --client-ca-file ca.crt --allow-privileged \
  --kubelet-client-certificate admin.crt --kubelet-client-key admin.key --kubelet-preferred-address-types InternalIP \
  --service-account-issuer https://kubernetes.default.svc.cluster.local --service-account-key-file sa.pub --service-account-signing-key-file sa.key \
  --service-cluster-ip-range 10.96.0.0/16 --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction
until_ok "$K kubectl get --raw /readyz"
start controllers $K kube-controller-manager --kubeconfig $KUBECONFIG --service-account-private-key-file sa.key --root-ca-file ca.crt \
  --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key --use-service-account-credentials --allocate-node-cidrs=false --leader-elect=false
start scheduler $K kube-scheduler --kubeconfig $KUBECONFIG --leader-elect=false

# --- node
cat > $D/containerd.toml <<E
version = 2
root = "$D/containerd/root"
state = "$D/containerd/state"
oom_score = 0
[grpc]
  address = "$D/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni/net.d"
E
cat > $D/cni/net.d/10-bridge.conflist <<E
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
E
# Docker's engine drops what is forwarded unless a rule takes it; the rule goes with the others (CNI) in `down`
iptables -C FORWARD -i cni0 -m comment --comment CNI-pods -j ACCEPT 2>/dev/null || iptables -I FORWARD -i cni0 -m comment --comment CNI-pods -j ACCEPT
iptables -C FORWARD -o cni0 -m comment --comment CNI-pods -j ACCEPT 2>/dev/null || iptables -I FORWARD -o cni0 -m comment --comment CNI-pods -j ACCEPT
start containerd containerd --config $D/containerd.toml
cat > $D/kubelet.yaml <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $IP
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $D/pki/ca.crt}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
tlsCertFile: $D/pki/kubelet.crt
tlsPrivateKeyFile: $D/pki/kubelet.key
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://$D/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: [$IP]
resolvConf: /etc/resolv.conf
failSwapOn: false
featureGates: {KubeletInUserNamespace: true}
evictionHard: {memory.available: 200Mi, nodefs.available: 3%, imagefs.available: 3%}
imageGCHighThresholdPercent: 99
localStorageCapacityIsolation: true
E
until_ok "ctr -a $D/containerd/containerd.sock version"
start kubelet $K kubelet --config $D/kubelet.yaml --kubeconfig $D/kubelet.kubeconfig --hostname-override $NODE --node-ip $IP --root-dir $D/kubelet
cat > $D/proxy.yaml <<E
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $D/admin.kubeconfig}
clusterCIDR: 10.244.0.0/24
hostnameOverride: $NODE
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
E
start proxy $K kube-proxy --config $D/proxy.yaml
cat > $D/Corefile <<E
.:53 {
  errors
  ready 127.0.0.1:8182
  kubernetes cluster.local in-addr.arpa { kubeconfig $D/admin.kubeconfig }
  cache 5
}
E
sed -i 's/^  kubernetes cluster.local in-addr.arpa {.*/  kubernetes cluster.local in-addr.arpa {\n    kubeconfig '"${D//\//\\/}"'\/admin.kubeconfig\n  }/' $D/Corefile
start coredns $K coredns -conf $D/Corefile
until_ok "$K kubectl get node $NODE -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}' | grep -q True"
$K kubectl get nodes -o wide
echo "export KUBECONFIG=$KUBECONFIG"
}

down() {
set +e
for n in coredns proxy kubelet; do [ -f $D/pid/$n ] && kill $(cat $D/pid/$n) 2>/dev/null; done; sleep 1
C="ctr -a $D/containerd/containerd.sock -n k8s.io"
for t in $($C tasks ls -q 2>/dev/null); do $C tasks kill -s KILL $t >/dev/null 2>&1; done; sleep 2
for t in $($C containers ls -q 2>/dev/null); do $C tasks rm -f $t >/dev/null 2>&1; $C containers rm $t >/dev/null 2>&1; done
for n in containerd scheduler controllers apiserver etcd; do [ -f $D/pid/$n ] && kill $(cat $D/pid/$n) 2>/dev/null; done; sleep 3
for n in $(ls $D/pid); do kill -9 $(cat $D/pid/$n) 2>/dev/null; rm $D/pid/$n; done
mount | awk -v d=$D '$3 ~ "^"d {print $3}' | sort -r | xargs -r umount 2>/dev/null
ip link del cni0 2>/dev/null
for t in nat filter mangle; do iptables-save -t $t | grep -E '^:(KUBE|CNI)|^-A (KUBE|CNI)|-j (KUBE|CNI)' | grep -q . && iptables-save -t $t | grep -vE 'KUBE|CNI-' | iptables-restore -T $t; done
}

case $1 in
build|up|down) "$1";;
load) shift 2; load "$@";;
*) sed -n 2,9p "$0"; exit 2;;
esac
